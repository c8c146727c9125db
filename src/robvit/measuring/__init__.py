"""What scaling attention does, measured with attacks: saturation, and scaled attacks beside plain ones."""
