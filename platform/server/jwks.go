// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/singleflight"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	// maxKeySetSize is the maximum size of a key set in bytes.
	maxKeySetSize = 1 << 20
	// keysMaxAge is the age at which keys are read again. keysRetryDelay is the minimum delay
	// between two reads, even if a token names an unknown key.
	keysMaxAge     = 15 * time.Minute
	keysRetryDelay = 10 * time.Second
	// keysTimeout is the timeout of one read.
	keysTimeout = 10 * time.Second
)

var errKeysUnavailable = errors.New("the issuer's keys could not be read, and are not read again so soon")

type keySet struct {
	config platform.Issuer
	client *http.Client
	clock  clock.PassiveClock
	group  singleflight.Group

	mu          sync.Mutex
	keys        jose.JSONWebKeySet
	readTime    time.Time
	attemptTime time.Time
}

func newKeySet(config platform.Issuer, clk clock.Clock, calls *metrics.CallMetrics) (*keySet, error) {
	transport := bounds.NewTransport()

	if config.JWKCertCAFile != "" {
		if err := bounds.TrustFile(transport, config.JWKCertCAFile, nil); err != nil {
			return nil, fmt.Errorf("read jwk_cert_ca_file: %w", err)
		}
	}

	tripper := bounds.LimitBodies(transport)
	if calls != nil {
		tripper = calls.WrapTransport("jwks", nil, tripper)
	}

	return &keySet{
		config: config, clock: clk,
		client: &http.Client{Transport: retry.NewTransport(tripper, clk, func(*http.Request) bool { return true })},
	}, nil
}

// find returns the keys with an ID, or all keys if the token names none. It reads the keys from the
// issuer if the key is unknown or the keys are older than keysMaxAge.
func (k *keySet) find(ctx context.Context, id string) ([]jose.JSONWebKey, error) {
	found, needsRefresh, isLoaded := k.lookup(id)

	switch {
	case needsRefresh:
		_, err, _ := k.group.Do("keys", func() (any, error) { return nil, k.refresh(context.WithoutCancel(ctx)) })
		if err != nil && !isLoaded {
			return nil, err
		}

		found, _, _ = k.lookup(id)
	case !isLoaded:
		return nil, errKeysUnavailable
	}

	return found, nil
}

// lookup searches the keys that were read before. It also returns whether the keys have to be read
// from the issuer, and whether they were ever read.
func (k *keySet) lookup(id string) (found []jose.JSONWebKey, needsRefresh, isLoaded bool) {
	k.mu.Lock()
	defer k.mu.Unlock()

	if id == "" {
		found = k.keys.Keys
	} else {
		found = k.keys.Key(id)
	}

	isLoaded = !k.readTime.IsZero()
	age := k.clock.Since(k.readTime)
	isTooSoon := k.clock.Since(k.attemptTime) < keysRetryDelay

	return found, !isTooSoon && (!isLoaded || len(found) == 0 || age > keysMaxAge), isLoaded
}

func (k *keySet) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()

	data, err := k.fetch(ctx)

	var keys jose.JSONWebKeySet
	if err == nil && json.Unmarshal(data, &keys) != nil {
		err = errors.New("the key set is not a JWKS document")
	}

	keys.Keys = slices.DeleteFunc(keys.Keys, isUnusable)

	k.mu.Lock()
	defer k.mu.Unlock()

	k.attemptTime = k.clock.Now()

	if err != nil {
		return fmt.Errorf("read the issuer's keys: %w", err)
	}

	k.keys, k.readTime = keys, k.attemptTime

	return nil
}

// isUnusable returns true if a key cannot verify a signature safely.
func isUnusable(key jose.JSONWebKey) bool {
	return !key.Valid() || !key.IsPublic() || key.Use != "" && key.Use != "sig"
}

func (k *keySet) fetch(ctx context.Context) ([]byte, error) {
	if k.config.JWKCertFile != "" {
		return os.ReadFile(k.config.JWKCertFile)
	}

	r, err := http.NewRequestWithContext(ctx, http.MethodGet, k.config.JWKCertURL, http.NoBody)
	if err != nil {
		return nil, err
	}

	resp, err := k.client.Do(r)
	if err != nil {
		return nil, err
	}

	defer func() { _ = resp.Body.Close() }()

	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}

	return io.ReadAll(io.LimitReader(resp.Body, maxKeySetSize))
}
