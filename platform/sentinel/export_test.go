// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel

// Round is the interval between reads of the change feed.
const Round = changesInterval
