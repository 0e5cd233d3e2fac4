// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package volume writes files as kubelet mounts a ConfigMap or a Secret: links to a folder that is
// replaced as a whole.
package volume
