// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ignition

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/hyperfleet/hyperfleet/kit/inputbound"
)

// Source is where HyperShift serves a worker's ignition.
type Source struct {
	URL string
	// Header has the token: keep it out of logs.
	Header http.Header
	// Authorities of the server, in PEM.
	Authorities []byte
}

type resource struct {
	Source      string `json:"source"`
	HTTPHeaders []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"httpHeaders"`
}

// maxUserData is how many values user data may have: HyperShift's has 20.
const maxUserData = 1000

// ReadUserData reads the user data of a NodePool's machines: an ignition that leads to the
// real one.
func ReadUserData(value []byte) (Source, error) {
	var config struct {
		Ignition struct {
			Config struct {
				Merge []resource `json:"merge"`
			} `json:"config"`
			Security struct {
				TLS struct {
					CertificateAuthorities []resource `json:"certificateAuthorities"`
				} `json:"tls"`
			} `json:"security"`
		} `json:"ignition"`
	}

	if err := inputbound.JSON(value, maxUserData); err != nil {
		return Source{}, fmt.Errorf("read user data: %w", err)
	}

	// The library's words could quote what it was given.
	if err := json.Unmarshal(value, &config); err != nil {
		return Source{}, errors.New("read user data: it is no JSON")
	}

	if len(config.Ignition.Config.Merge) != 1 {
		return Source{}, fmt.Errorf("read user data: it leads to %d ignitions, and not to one", len(config.Ignition.Config.Merge))
	}

	from := config.Ignition.Config.Merge[0]
	if !strings.HasPrefix(from.Source, "https://") {
		return Source{}, errors.New("read user data: its source is not at https")
	}

	out := Source{URL: from.Source, Header: http.Header{}}
	for _, header := range from.HTTPHeaders {
		out.Header.Set(header.Name, header.Value)
	}

	for _, authority := range config.Ignition.Security.TLS.CertificateAuthorities {
		pem, err := decode(authority.Source)
		if err != nil {
			return Source{}, fmt.Errorf("read user data: authority: %w", err)
		}

		out.Authorities = append(append(out.Authorities, pem...), '\n')
	}

	return out, nil
}

// decode gives what a data URL holds (RFC 2397).
func decode(source string) ([]byte, error) {
	kind, data, ok := strings.Cut(source, ",")
	if !ok || !strings.HasPrefix(kind, "data:") {
		return nil, errors.New("it is no data URL")
	}

	if strings.HasSuffix(kind, ";base64") {
		out, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			return nil, errors.New("its base64 is wrong")
		}

		return out, nil
	}

	text, err := url.PathUnescape(data)
	if err != nil {
		return nil, errors.New("its escapes are wrong")
	}

	return []byte(text), nil
}
