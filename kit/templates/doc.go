// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package templates executes Go templates of users with limits.
//
// A template can loop without end, call itself, and double a text until no memory is left. Nothing
// outside of the template can stop it. Therefore this package counts each executed node, limits the
// depth of template calls, and measures each text that a function creates. It estimates the size of
// a text before the function creates it, and counts the actual size afterwards.
package templates
