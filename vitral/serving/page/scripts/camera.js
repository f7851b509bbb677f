// The camera: frames as photos, one whenever the last one has been answered.

import {Problem} from "./api.js";
import {nameFor, Photo} from "./photos.js";

const SIDE = 640;  // pixels: more than models take, little to send

/** Browsers give the camera to secure pages alone: https, or this machine. */
export const hasCamera = () => Boolean(navigator.mediaDevices?.getUserMedia);

export class Camera {
  constructor(video, stream) {
    Object.assign(this, {video, stream, isOpen: true});
    stream.getVideoTracks()[0].addEventListener("ended", () => this.close());
  }

  static async open(video) {
    try {
      const wish = {width: {ideal: SIDE}, height: {ideal: SIDE}, facingMode: "environment"};
      const stream = await navigator.mediaDevices.getUserMedia({video: wish, audio: false});
      video.srcObject = stream;
      await video.play();
      return new Camera(video, stream);
    } catch (error) {
      throw new Problem("camera", {detail: error.message});
    }
  }

  /** The next frame as a photo; waits while the page is out of sight. */
  async frame() {
    await new Promise(requestAnimationFrame);
    const {videoWidth, videoHeight} = this.video;
    const scale = Math.min(1, SIDE / Math.max(videoWidth, videoHeight, 1));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(videoWidth * scale));
    canvas.height = Math.max(1, Math.round(videoHeight * scale));
    canvas.getContext("2d").drawImage(this.video, 0, 0, canvas.width, canvas.height);
    const blob = await new Promise((done) => { canvas.toBlob(done, "image/jpeg", 0.9); });
    return new Photo(blob, nameFor("camera", blob.type), canvas);
  }

  close() {
    this.isOpen = false;
    for (const track of this.stream.getTracks()) track.stop();
    this.video.srcObject = null;
  }
}
