"""Inference: the predictor, its inputs and outputs, and the engines that run models and exports."""
