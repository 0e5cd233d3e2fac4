// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package dryrun plays one event through an adapter's task file without a cluster, an
// API or a broker: the answers of the API come from a file, and so do the objects that
// are found. What is left is the pipeline itself (platform/adapter/pipeline), and the
// trace of its every decision.
package dryrun
