// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mounted stops a program whose configuration has changed, so that the kubelet restarts the
// program with the new configuration. It watches only files that the kubelet mounts from a
// ConfigMap or a Secret.
package mounted
