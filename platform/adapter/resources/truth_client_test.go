// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"math/bits"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

// creations are creation times of objects, as if time passed between some of the writes of a history. The API server's have
// a resolution of one second, so versions from a fast history would all have the same, and which ones have the same would
// depend on the load of the computer.
type creations struct {
	mu     sync.Mutex
	byUID  map[types.UID]metav1.Time
	latest time.Time
	// pace has a bit for each of the next eight objects, and so on: if it is set, the object is created a second after the
	// one before it, and otherwise in the same second.
	pace uint8
}

func (c *creations) set(objects ...*unstructured.Unstructured) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, object := range objects {
		if object == nil {
			continue
		}

		if _, isKnown := c.byUID[object.GetUID()]; !isKnown {
			c.latest = c.latest.Add(time.Duration(c.pace&1) * time.Second)
			c.pace = bits.RotateLeft8(c.pace, -1)
			c.byUID[object.GetUID()] = metav1.NewTime(c.latest)
		}

		object.SetCreationTimestamp(c.byUID[object.GetUID()])
	}
}

// datingClient is a client with live reads, whose objects have the times of creations.
type datingClient struct {
	staleReader

	creations *creations
}

func (c datingClient) Find(ctx context.Context, query transport.Query, read transport.Read) ([]*unstructured.Unstructured, error) {
	found, err := c.staleReader.Find(ctx, query, read)
	c.creations.set(found...)

	return found, err
}

func (c datingClient) Create(ctx context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	created, err := c.Client.Create(ctx, o)
	c.creations.set(created)

	return created, err
}

func (c datingClient) Apply(ctx context.Context, live, o *unstructured.Unstructured) (*unstructured.Unstructured, string, error) {
	applied, what, err := c.Client.Apply(ctx, live, o)
	c.creations.set(applied)

	return applied, what, err
}

func (c datingClient) Patch(ctx context.Context, ref transport.Ref, document map[string]any) (*unstructured.Unstructured, error) {
	patched, err := c.Client.Patch(ctx, ref, document)
	c.creations.set(patched)

	return patched, err
}

// dyingClient is a client whose process is killed before or after a write.
type dyingClient struct {
	datingClient

	left        int
	isAfterward bool
	kill        func()
}

func (c *dyingClient) die(isAfterward bool) {
	if isAfterward == c.isAfterward {
		c.left--
	}

	if c.left < 0 {
		c.kill()
	}
}

func (c *dyingClient) Create(ctx context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	c.die(false)
	defer c.die(true)

	return c.datingClient.Create(ctx, o)
}

func (c *dyingClient) Apply(ctx context.Context, live, o *unstructured.Unstructured) (*unstructured.Unstructured, string, error) {
	c.die(false)
	defer c.die(true)

	return c.datingClient.Apply(ctx, live, o)
}

func (c *dyingClient) Patch(ctx context.Context, ref transport.Ref, document map[string]any) (*unstructured.Unstructured, error) {
	c.die(false)
	defer c.die(true)

	return c.datingClient.Patch(ctx, ref, document)
}

func (c *dyingClient) Delete(ctx context.Context, ref transport.Ref, propagation metav1.DeletionPropagation) error {
	c.die(false)
	defer c.die(true)

	return c.Client.Delete(ctx, ref, propagation)
}
