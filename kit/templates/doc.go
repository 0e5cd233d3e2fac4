// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package templates runs Go templates that users wrote, within bounds.
//
// A template can loop for ever, call itself, and double a text until memory is full, and
// nothing stops one from outside. So each node that is executed counts, each call of a
// template has a depth, and each text that a function makes is measured before it is made
// and counted after.
package templates
