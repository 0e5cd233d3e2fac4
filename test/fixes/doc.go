// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fixes runs the commands that messages tell people to run, as a person would.
package fixes
