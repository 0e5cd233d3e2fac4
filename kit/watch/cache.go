// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// mappingTimeout is the timeout of one discovery call for a cache.
const mappingTimeout = 4 * time.Second

// NewMapper is the MapperProvider of a manager. If the mapper does not know the resource of a kind, a source that starts
// asks the API server for it. This call takes no context, and the cache cannot stop while the call runs, so the call has
// a timeout.
func NewMapper(config *rest.Config, httpClient *http.Client) (meta.RESTMapper, error) {
	limited := *httpClient
	limited.Timeout = mappingTimeout

	return apiutil.NewDynamicRESTMapper(config, &limited)
}

// NewCache returns a function that creates the cache of a manager. ctx is the context of the manager's Start. A manager
// whose ctx ends while its caches sync waits for them, without an end if the API server does not respond. With this
// cache, it ends.
func NewCache(ctx context.Context) cache.NewCacheFunc {
	return func(config *rest.Config, options cache.Options) (cache.Cache, error) {
		created, err := cache.New(config, options)
		if err != nil {
			return nil, err
		}

		return &endingCache{Cache: created, manager: ctx}, nil
	}
}

type endingCache struct {
	cache.Cache

	manager context.Context //nolint:containedctx // of the manager, which outlives all calls
}

// WaitForCacheSync waits until the cache has synced. It also returns true when the manager is stopped.
func (c *endingCache) WaitForCacheSync(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.manager, cancel)()

	return c.Cache.WaitForCacheSync(ctx) || c.manager.Err() != nil
}
