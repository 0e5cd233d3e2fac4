// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package standin is the programs that stand in for the platforms' runners in the image of a
// simulated machine. A thousand of them may share two cores: it imports nothing that takes time
// when a program starts, and no simulator.
package standin
