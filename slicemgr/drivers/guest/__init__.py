"""The content that slicemgr puts into slivers: files, identity, keys, cloud-init seed and view of /proc."""
