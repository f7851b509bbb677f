# Vitral on the CPU.
#
#   docker build -t vitral .
#   docker run --rm -v "$PWD:/data" vitral train photos --out runs/photos
#
# constraints.txt pins the versions that were tested, torch among them. Which build of that torch pip finds, for the CPU or with
# CUDA, is up to pip's settings, as it is for the Makefile; give the build those of this machine with
#   docker build --secret id=pip,src="$HOME/.config/pip/pip.conf" -t vitral .
FROM python:3.11-slim

ARG EXTRAS=""
# such as [deploy], for ONNX Runtime and OpenVINO: docker build --build-arg EXTRAS=[deploy] .

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY vitral /src/vitral
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --no-cache-dir -c /src/constraints.txt "/src${EXTRAS}" && rm -rf /src

RUN useradd --create-home vitral && install -d -o vitral /data
USER vitral
WORKDIR /data

ENTRYPOINT ["vitral"]
CMD ["--help"]
