// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package httpcall

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// root is the path of the fleet API below its base URL.
const root = "api/hyperfleet/"

// resolve returns the absolute URL of a call. A relative URL is below /api/hyperfleet/VERSION of the fleet
// API, or below its base URL if it starts with api/.
func (c *Client) resolve(text string) (*url.URL, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, errors.New("api_call: the URL is empty")
	}

	target, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("api_call: the URL is invalid") // the text is omitted because it may contain a secret
	}

	if target.IsAbs() {
		if target.Scheme != "http" && target.Scheme != "https" || target.Host == "" {
			return nil, fmt.Errorf("api_call: %s: only http and https are supported", redactURL(target))
		}

		return target, nil
	}

	if target.Host != "" {
		return nil, fmt.Errorf("api_call: %s: the scheme is missing; write http or https", redactURL(target))
	}

	// A rendered value must not lead out of the path in the task file.
	if slices.ContainsFunc(strings.Split(target.Path, "/"), func(s string) bool { return s == ".." || s == "." }) {
		return nil, fmt.Errorf("api_call: %s: a relative URL must not contain . or .. as a part", redactURL(target))
	}

	relative := strings.TrimPrefix(target.EscapedPath(), "/")
	if !strings.HasPrefix(relative, "api/") {
		relative = root + c.api.Version + "/" + relative
	}

	out := c.base.JoinPath(relative)
	out.RawQuery = target.RawQuery

	return out, nil
}

// redactURL returns a URL for messages, without user and query, which may contain secrets.
func redactURL(target *url.URL) string {
	return (&url.URL{Scheme: target.Scheme, Host: target.Host, Path: target.Path}).String()
}
