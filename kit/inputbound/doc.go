// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inputbound bounds texts that others wrote before they are decoded: a decoder takes
// some memory for each value, whatever its size, and a text of 1 MiB may have half a million.
package inputbound
