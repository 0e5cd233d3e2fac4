// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package httpcall

// Jitter has the pauses by chance be by these numbers, in [0,1).
func (c *Client) Jitter(random func() float64) { c.random = random }
