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

// root is where the fleet API lives below its base URL.
const root = "api/hyperfleet/"

// resolve gives the URL that a call goes to. A relative one is below
// /api/hyperfleet/VERSION of the fleet API, or below / if it begins with api/.
func (c *Client) resolve(text string) (*url.URL, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, errors.New("api_call: the URL is empty")
	}

	target, err := url.Parse(text)
	if err != nil {
		return nil, errors.New("api_call: the URL does not parse") // the text may hold a secret
	}

	if target.IsAbs() {
		if target.Scheme != "http" && target.Scheme != "https" || target.Host == "" {
			return nil, fmt.Errorf("api_call: %s: only http and https are spoken", shown(target))
		}

		return target, nil
	}

	if target.Host != "" {
		return nil, fmt.Errorf("api_call: %s: write the scheme, http or https", shown(target))
	}

	// A value put into a path must not climb out of the place that the task file names.
	if slices.ContainsFunc(strings.Split(target.Path, "/"), func(s string) bool { return s == ".." || s == "." }) {
		return nil, fmt.Errorf("api_call: %s: a relative URL has no . and .. in it", shown(target))
	}

	relative := strings.TrimPrefix(target.EscapedPath(), "/")
	if !strings.HasPrefix(relative, "api/") {
		relative = root + c.api.Version + "/" + relative
	}

	out := c.base.JoinPath(relative)
	out.RawQuery = target.RawQuery

	return out, nil
}

// shown is a URL for texts: without user and query, which may hold secrets.
func shown(target *url.URL) string {
	return (&url.URL{Scheme: target.Scheme, Host: target.Host, Path: target.Path}).String()
}
