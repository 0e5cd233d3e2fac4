// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubelet runs pods as processes, for tests of the released manifests. A process has the
// container's arguments and environment variables, its ConfigMaps and Secrets as files, and the credentials
// of its service account. Names of Services are replaced by addresses of other processes. The processes
// listen on free loopback ports. The package does not simulate the content of images and the isolation of
// containers.
package kubelet
