// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package httpcall

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const maxToken = 64 << 10

// tokenFile reads a bearer token again when what it knows is too old.
type tokenFile struct {
	path  string
	ttl   time.Duration
	clock clock.PassiveClock

	mu     sync.Mutex
	token  string
	readAt time.Time
}

func (t *tokenFile) read() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.token != "" && t.clock.Since(t.readAt) < t.ttl {
		return t.token, nil
	}

	file, err := os.Open(t.path)
	if err != nil {
		return "", fmt.Errorf("read token of the fleet API: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read

	data, err := io.ReadAll(io.LimitReader(file, maxToken+1))
	if err != nil {
		return "", fmt.Errorf("read token of the fleet API: %w", err)
	}

	data = bytes.TrimSpace(data)
	if len(data) == 0 || len(data) > maxToken || bytes.ContainsAny(data, "\r\n") {
		return "", errors.New("read token of the fleet API: " + t.path + " holds no token: one line is expected")
	}

	t.token, t.readAt = string(data), t.clock.Now()

	return t.token, nil
}

// forget has the file read again at the next call.
func (t *tokenFile) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.token = ""
}
