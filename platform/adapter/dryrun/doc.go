// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package dryrun runs an adapter's task file for one event without a cluster, an API or a broker. One
// file contains the API's responses and another file the objects that discovery finds. The package runs
// the real pipeline (platform/adapter/pipeline) and reports a trace of every decision.
package dryrun
