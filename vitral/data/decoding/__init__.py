"""The one decoder: every pixel of training, evaluation, prediction and serving comes through here."""
