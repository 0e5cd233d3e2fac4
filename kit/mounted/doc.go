// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mounted ends a program whose configuration has changed, so that it is started with the
// new one. It looks at files that kubelet mounts, from a ConfigMap or a Secret, and at no others.
package mounted
