# sources of docs
