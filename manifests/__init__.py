"""Tables of what there is to encode: images, texts and how they belong together.

Where things are:
- the tables: `schema`, `regions` (what a row is), `writer`, `identity`, `digest` (how they are written),
  `manifest`, `check` (how they are read), `tables`, `readers` (tables of one's own);
- a data set: `contracts`, `build`, and a file each in `datasets/`;
- what publishers' files share: `layouts` (errors that say what was expected), `folders`, `shards` (where pictures
  lie), `captioned`, `caption_files`, `coco_json`, `entities`, `relations` (captions and what belongs to them),
  `classes`, `prompts`, `imagenet`, `cifar`, `torchvision_sets` (classes), `label_maps`, `upright` (masks, boxes);
- what is made rather than read: `digits`, `morphology` (MAD), `orders`, `brill` (ARO's shuffles), `mentions`,
  `coco_names` (object queries), `pictures` (files in the manifest's own folder).
"""
