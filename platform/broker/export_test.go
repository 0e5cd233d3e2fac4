// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"strconv"
)

// PublishRaw publishes what need not be an event.
func PublishRaw(ctx context.Context, b Broker, topic string, body []byte) error {
	c, ok := b.(*core)
	if !ok {
		return errors.ErrUnsupported
	}

	return c.over.publish(ctx, topic, message{id: strconv.Itoa(len(body)), key: "raw", body: body})
}

// LastPartKey is a key of the part that a subscription consumes last.
func LastPartKey() string {
	for i := 0; ; i++ {
		if key := "warm-up-" + strconv.Itoa(i); partition(key) == partitionCount-1 {
			return key
		}
	}
}

// PartKeys is a key of each part.
func PartKeys() []string {
	out := make([]string, partitionCount)

	for i, found := 0, 0; found < partitionCount; i++ {
		key := "part-" + strconv.Itoa(i)
		if part := partition(key); out[part] == "" {
			out[part] = key
			found++
		}
	}

	return out
}
