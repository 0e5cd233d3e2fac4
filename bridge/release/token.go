// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package release

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/hyperfleet/hyperfleet/bridge/credentials"
)

// maxToken bounds in bytes the answer with a token.
const maxToken = 1 << 20

var (
	errNoToken  = errors.New("the answer of its token service holds no token")
	errRealm    = errors.New("it sends logins to an address that is not https")
	errStrange  = errors.New("it asks for a kind of authentication that is neither Bearer nor Basic")
	errNoAnswer = errors.New("its token service does not answer as one")
)

// authorize does what the registry asks for, and gives the header of the next request.
func (c *Checker) authorize(
	ctx context.Context, header http.Header, ref Reference, login credentials.Login, hasLogin bool,
) (string, error) {
	for _, text := range header.Values("WWW-Authenticate") {
		scheme, parameters := parseChallenge(text)

		switch strings.ToLower(scheme) {
		case "bearer":
			return c.bearer(ctx, parameters, ref, login, hasLogin)
		case "basic":
			if !hasLogin {
				return "", unauthorized(ref, false)
			}

			return basic(login), nil
		}
	}

	return "", unreachable(ref, errStrange)
}

func basic(login credentials.Login) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(login.User+":"+login.Password))
}

// bearer fetches a token that may pull
// (https://distribution.github.io/distribution/spec/auth/token/).
func (c *Checker) bearer(
	ctx context.Context, parameters map[string]string, ref Reference, login credentials.Login, hasLogin bool,
) (string, error) {
	realm, err := url.Parse(parameters["realm"])
	if err != nil || realm.Scheme != "https" || realm.Host == "" {
		return "", unreachable(ref, errRealm)
	}

	query := realm.Query()
	if service := parameters["service"]; service != "" {
		query.Set("service", service)
	}

	query.Set("scope", "repository:"+ref.Repository+":pull")
	realm.RawQuery = query.Encode()

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, realm.String(), http.NoBody)
	if err != nil {
		return "", unreachable(ref, errRealm)
	}

	if hasLogin {
		request.Header.Set("Authorization", basic(login))
	}

	answer, err := c.client.Do(request)
	if err != nil {
		return "", unreachable(ref, fmt.Errorf("ask its token service: %w", err))
	}

	defer answer.Body.Close() //nolint:errcheck // it was read

	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return "", unauthorized(ref, hasLogin)
	default:
		err := fmt.Errorf("its token service answers with status %d", answer.StatusCode) //nolint:err113 // wrapped at once

		return "", unreachable(ref, err)
	}

	return readToken(answer.Body, ref)
}

func readToken(body io.Reader, ref Reference) (string, error) {
	var out struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if err := json.NewDecoder(io.LimitReader(body, maxToken)).Decode(&out); err != nil {
		return "", unreachable(ref, errNoAnswer) // json's error may quote the token
	}

	if out.Token == "" {
		out.Token = out.AccessToken
	}

	if out.Token == "" || strings.ContainsAny(out.Token, "\r\n") {
		return "", unreachable(ref, errNoToken)
	}

	return "Bearer " + out.Token, nil
}

// parseChallenge reads a WWW-Authenticate header: a scheme, and parameters key="value"
// or key=value with commas between them (RFC 9110, 11.6.1).
func parseChallenge(text string) (string, map[string]string) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	out := map[string]string{}

	for {
		rest = strings.TrimLeft(rest, ", \t")

		key, value, found := strings.Cut(rest, "=")
		if !found {
			return scheme, out
		}

		value = strings.TrimLeft(value, " \t")

		if !strings.HasPrefix(value, `"`) {
			value, rest, _ = strings.Cut(value, ",")
			out[strings.ToLower(strings.TrimSpace(key))] = strings.TrimSpace(value)

			continue
		}

		value, rest = unquote(value[1:])
		out[strings.ToLower(strings.TrimSpace(key))] = value
	}
}

// unquote reads a quoted string up to its end, and gives what is behind it.
func unquote(text string) (value, rest string) {
	var b strings.Builder

	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '"':
			return b.String(), text[i+1:]
		case text[i] == '\\' && i+1 < len(text):
			i++
		}

		b.WriteByte(text[i])
	}

	return b.String(), ""
}
