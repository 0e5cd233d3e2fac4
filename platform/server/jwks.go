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
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	// maxKeySet in bytes.
	maxKeySet = 1 << 20
	// keysFresh is how long keys are used without looking whether they are still the
	// issuer's; keysPause is how long a key that is not among them is not looked for again.
	keysFresh = 15 * time.Minute
	keysPause = 10 * time.Second
	// keysTimeout bounds one look.
	keysTimeout = 10 * time.Second
)

var errKeysPause = errors.New("the issuer's keys could not be read a moment ago")

// keySet holds the keys of one issuer of tokens.
type keySet struct {
	config platform.Issuer
	client *http.Client
	clock  clock.PassiveClock
	group  singleflight.Group

	mu     sync.Mutex
	keys   jose.JSONWebKeySet
	read   time.Time
	looked time.Time
}

func newKeySet(config platform.Issuer, clk clock.Clock, calls *metrics.Calls) (*keySet, error) {
	transport := httpbound.Plain()

	if config.JWKCertCAFile != "" {
		var err error
		if transport.TLSClientConfig, err = httpbound.Trusting(config.JWKCertCAFile, nil); err != nil {
			return nil, fmt.Errorf("read jwk_cert_ca_file: %w", err)
		}
	}

	tripper := httpbound.Transport(transport)
	if calls != nil {
		tripper = calls.Transport("jwks", nil, tripper)
	}

	return &keySet{
		config: config, clock: clk,
		client: &http.Client{Transport: retry.Transport(tripper, clk, func(*http.Request) bool { return true })},
	}, nil
}

// find gives the keys with an id, or all of them for a token that names none. Keys that
// are not there, or have been there for long, are looked for at the issuer's.
func (k *keySet) find(ctx context.Context, id string) ([]jose.JSONWebKey, error) {
	found, look, known := k.local(id)

	switch {
	case look:
		_, err, _ := k.group.Do("keys", func() (any, error) { return nil, k.refresh(context.WithoutCancel(ctx)) })
		if err != nil && !known {
			return nil, err
		}

		found, _, _ = k.local(id)
	case !known:
		return nil, errKeysPause
	}

	return found, nil
}

// local looks among the keys that are there, and tells whether to look at the issuer's, and
// whether any were ever read.
func (k *keySet) local(id string) (found []jose.JSONWebKey, look, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()

	if id == "" {
		found = k.keys.Keys
	} else {
		found = k.keys.Key(id)
	}

	known = !k.read.IsZero()
	age := k.clock.Since(k.read)
	pause := k.clock.Since(k.looked) < keysPause

	return found, !pause && (!known || len(found) == 0 || age > keysFresh), known
}

// refresh reads the keys.
func (k *keySet) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()

	data, err := k.fetch(ctx)

	var keys jose.JSONWebKeySet
	if err == nil && json.Unmarshal(data, &keys) != nil {
		err = errors.New("the key set is not a JWKS document")
	}

	keys.Keys = slices.DeleteFunc(keys.Keys, unfit)

	k.mu.Lock()
	defer k.mu.Unlock()

	k.looked = k.clock.Now()

	if err != nil {
		return fmt.Errorf("read the issuer's keys: %w", err)
	}

	k.keys, k.read = keys, k.looked

	return nil
}

// unfit says of a key that it could not check a signature safely.
func unfit(key jose.JSONWebKey) bool {
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

	return io.ReadAll(io.LimitReader(resp.Body, maxKeySet))
}
