// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package doctor has the command that looks over an installation, `hyperfleet doctor`:
// whether the kinds and roles of each area are installed, whether an operator runs it, and
// which objects wait for a person. It reads from the API server alone, and changes nothing.
package doctor
