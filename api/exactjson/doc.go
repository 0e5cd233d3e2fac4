// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package exactjson decodes JSON without changing it. encoding/json rounds numbers to float64, replaces
// invalid text, and takes the last of several equal keys. This package keeps the value of every number, and
// returns an error that names the place of everything else that Go's types can't hold.
package exactjson
