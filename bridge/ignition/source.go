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

	"github.com/hyperfleet/hyperfleet/kit/bounds"
)

// Source is the location at which HyperShift serves a worker's ignition.
type Source struct {
	URL string
	// Header contains the token. It must not be logged.
	Header http.Header
	// CABundle verifies the server, in PEM.
	CABundle []byte
}

type resource struct {
	Source      string `json:"source"`
	HTTPHeaders []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	} `json:"httpHeaders"`
}

// maxUserDataValues bounds the number of JSON values in user data. HyperShift's user data has 20.
const maxUserDataValues = 1000

// ParseUserData parses the user data of a NodePool's machines: an ignition that refers to the actual
// ignition.
func ParseUserData(value []byte) (Source, error) {
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

	if err := bounds.CheckJSON(value, maxUserDataValues); err != nil {
		return Source{}, fmt.Errorf("parse user data: %w", err)
	}

	// The error of package json may contain the input.
	if err := json.Unmarshal(value, &config); err != nil {
		return Source{}, errors.New("parse user data: it is not JSON")
	}

	if len(config.Ignition.Config.Merge) != 1 {
		return Source{}, fmt.Errorf("parse user data: it refers to %d ignitions and must refer to one",
			len(config.Ignition.Config.Merge))
	}

	location := config.Ignition.Config.Merge[0]
	if !strings.HasPrefix(location.Source, "https://") {
		return Source{}, errors.New("parse user data: its source is not an https URL")
	}

	out := Source{URL: location.Source, Header: http.Header{}}
	for _, header := range location.HTTPHeaders {
		out.Header.Set(header.Name, header.Value)
	}

	for _, authority := range config.Ignition.Security.TLS.CertificateAuthorities {
		pem, err := decodeDataURL(authority.Source)
		if err != nil {
			return Source{}, fmt.Errorf("parse user data: decode certificate authority: %w", err)
		}

		out.CABundle = append(append(out.CABundle, pem...), '\n')
	}

	return out, nil
}

// decodeDataURL returns the content of a data URL (RFC 2397).
func decodeDataURL(source string) ([]byte, error) {
	kind, data, ok := strings.Cut(source, ",")
	if !ok || !strings.HasPrefix(kind, "data:") {
		return nil, errors.New("it is not a data URL")
	}

	if strings.HasSuffix(kind, ";base64") {
		out, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			return nil, errors.New("its base64 is not valid")
		}

		return out, nil
	}

	text, err := url.PathUnescape(data)
	if err != nil {
		return nil, errors.New("its URL escapes are not valid")
	}

	return []byte(text), nil
}
