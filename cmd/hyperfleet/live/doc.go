// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package live is what the live views of a cluster share: `hyperfleet web` and `hyperfleet top`
// follow its objects by watches, so that a view costs the API server nothing, and sum them up.
package live
