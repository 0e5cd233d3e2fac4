// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package defaults has the list of the defaults of all fields and settings, testdata/defaults.txt, and functions
// with which tests compare the defaults in the code with this list and with the reference pages. A line has the
// kind, the setting and the default. Settings without a default (an empty value, 0 or false) are not listed.
package defaults
