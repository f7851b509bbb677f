# Vitral on the CPU.
#
#   docker build -t vitral .
#   docker run --rm --user "$(id -u)" -e HOME=/tmp -v "$PWD:/data" vitral train photos --out runs/photos
#
# With --user the run folder belongs to you; without it the user of the image must be allowed to write to the mounted folder.
#
# constraints.txt pins the versions that were tested, torch among them. Whether pip finds the build of torch for the CPU or with
# CUDA depends on pip's settings. To use those of this machine:
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
