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

// maxTokenBytes bounds the response of a token service.
const maxTokenBytes = 1 << 20

var (
	errNoToken           = errors.New("the response of its token service has no token")
	errInvalidRealm      = errors.New("its token service does not use https")
	errUnsupportedScheme = errors.New("it requires an authentication that is neither Bearer nor Basic")
	errInvalidResponse   = errors.New("the response of its token service is not valid")
)

// authorize authenticates as the response header requires, and returns the Authorization header of the
// next request.
func (c *Checker) authorize(
	ctx context.Context, header http.Header, ref Reference, login credentials.Login, hasLogin bool,
) (string, error) {
	for _, text := range header.Values("WWW-Authenticate") {
		scheme, parameters := parseChallenge(text)

		switch strings.ToLower(scheme) {
		case "bearer":
			return c.fetchBearerToken(ctx, parameters, ref, login, hasLogin)
		case "basic":
			if !hasLogin {
				return "", newUnauthorizedError(ref, withoutLogin)
			}

			return basicAuthorization(login), nil
		}
	}

	return "", newUnreachableError(ref, errUnsupportedScheme)
}

func basicAuthorization(login credentials.Login) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(login.User+":"+login.Password))
}

// fetchBearerToken fetches a token that permits to pull the image
// (https://distribution.github.io/distribution/spec/auth/token/).
func (c *Checker) fetchBearerToken(
	ctx context.Context, parameters map[string]string, ref Reference, login credentials.Login, hasLogin bool,
) (string, error) {
	realm, err := url.Parse(parameters["realm"])
	if err != nil || realm.Scheme != "https" || realm.Host == "" {
		return "", newUnreachableError(ref, errInvalidRealm)
	}

	query := realm.Query()
	if service := parameters["service"]; service != "" {
		query.Set("service", service)
	}

	query.Set("scope", "repository:"+ref.Repository+":pull")
	realm.RawQuery = query.Encode()

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, realm.String(), http.NoBody)
	if err != nil {
		return "", newUnreachableError(ref, errInvalidRealm)
	}

	if hasLogin {
		request.Header.Set("Authorization", basicAuthorization(login))
	}

	response, err := c.client.Do(request)
	if err != nil {
		return "", newUnreachableError(ref, fmt.Errorf("call its token service: %w", err))
	}

	defer response.Body.Close() //nolint:errcheck // the body was read

	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return "", newUnauthorizedError(ref, hasLogin)
	default:
		err := fmt.Errorf("its token service responded with status %d", response.StatusCode) //nolint:err113 // wrapped at once

		return "", newUnreachableError(ref, err)
	}

	return decodeToken(response.Body, ref)
}

func decodeToken(body io.Reader, ref Reference) (string, error) {
	var out struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if err := json.NewDecoder(io.LimitReader(body, maxTokenBytes)).Decode(&out); err != nil {
		return "", newUnreachableError(ref, errInvalidResponse) // the error of package json may contain the token
	}

	if out.Token == "" {
		out.Token = out.AccessToken
	}

	if out.Token == "" || strings.ContainsAny(out.Token, "\r\n") {
		return "", newUnreachableError(ref, errNoToken)
	}

	return "Bearer " + out.Token, nil
}

// parseChallenge parses a WWW-Authenticate header: a scheme, and comma-separated parameters of the form
// key="value" or key=value (RFC 9110, 11.6.1).
func parseChallenge(text string) (scheme string, parameters map[string]string) {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	parameters = map[string]string{}

	for {
		rest = strings.TrimLeft(rest, ", \t")

		key, value, found := strings.Cut(rest, "=")
		if !found {
			return scheme, parameters
		}

		value = strings.TrimLeft(value, " \t")

		if !strings.HasPrefix(value, `"`) {
			value, rest, _ = strings.Cut(value, ",")
			parameters[strings.ToLower(strings.TrimSpace(key))] = strings.TrimSpace(value)

			continue
		}

		value, rest = unquote(value[1:])
		parameters[strings.ToLower(strings.TrimSpace(key))] = value
	}
}

// unquote returns the quoted string up to its closing quote, and the text after it.
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
