// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package migrate converts configurations of the upstream HyperFleet project to those of this project: of the API,
// of Sentinel, of the broker and of adapters, and the values of their Helm charts. Every key of a file is either
// converted, or left out with a note, or reported with its line as a problem that a person must fix. The rules are
// those of upstream's configuration reference and charts of August 2026.
package migrate
