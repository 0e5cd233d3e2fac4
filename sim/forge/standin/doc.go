// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package standin runs the simulated runner programs in the image of a simulated machine. A
// thousand machines may share two cores, so the package imports no simulator and nothing that slows
// down the start of a program.
package standin
