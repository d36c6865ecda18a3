dnl included by configure.ac, found by plugins/collect.sh
on_dataset_folder=$with_images
why_dataset_folder='libjpeg, libpng or libwebp not found: apt-get install libjpeg-dev libpng-dev libwebp-dev'
