// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package volume writes files as kubelet mounts a ConfigMap or a Secret: the files are symbolic links into
// a directory that is replaced atomically.
package volume
