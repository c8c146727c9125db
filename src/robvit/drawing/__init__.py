"""The one place that draws. It knows tensors, arrays and PIL, and nothing of models, attacks or records.

- `style`: colours, sizes, fonts and text
- `images`: tensors as images, heat maps, signed maps, coloured masks, marked patches, PNG files
- `perturbation`: what an attack added, made visible
- `grid`: tiles in rows under the names of their columns
- `sheet`: a title, a caption and parts below each other; clean and adversarial images side by side
- `charts`: curves over an axis, as an image or as SVG
- `surfaces`: heights over a floor in perspective
"""
