// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package client

// SetRandom replaces the random numbers in [0,1) of the jitter.
func (c *Client) SetRandom(random func() float64) { c.random = random }
