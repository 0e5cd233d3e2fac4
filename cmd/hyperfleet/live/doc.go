// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package live provides the data for `hyperfleet web` and `hyperfleet top`: a cache of a cluster's objects
// that watches keep up to date, and summaries of these objects. Views read the cache and send no requests to
// the API server, except to read the log of a job.
package live
