# integration
