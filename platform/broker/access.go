// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/hyperfleet/hyperfleet/kit/httpbound"
)

var (
	errPassword = errors.New("it has a password in it: keep it in url_file")
	errEscape   = errors.New("write /, ?, # and @ in a password or a path as %2F, %3F, %23 and %40")
	errOne      = errors.New("write one URL: with a cluster, of a name that all of its servers have")
	errNoPair   = errors.New("give cert_file and key_file, both or none")
)

// access is how the settings say that a server is reached. Its files are read anew for
// each connection, so that what is in them may change.
type access struct {
	// field of the settings: broker.rabbitmq.
	field                     string
	url, urlFile              string
	caFile, certFile, keyFile string
}

// check says whether everything can be read now.
func (a access) check() error {
	if (a.certFile == "") != (a.keyFile == "") {
		return fmt.Errorf("%s: %w", a.field, errNoPair)
	}

	if _, err := a.address(); err != nil {
		return err
	}

	_, err := a.tls()

	return err
}

// where is the setting that has the URL.
func (a access) where() string {
	if a.urlFile != "" {
		return a.field + ".url_file"
	}

	return a.field + ".url"
}

// address gives the URL. Errors don't repeat it: it may
// hold a password.
func (a access) address() (string, error) {
	if (a.url == "") == (a.urlFile == "") {
		return "", fmt.Errorf("%s: give url or url_file, one of them", a.field)
	}

	text := a.url

	if a.urlFile != "" {
		data, err := os.ReadFile(a.urlFile)
		if err != nil {
			return "", fmt.Errorf("%s.url_file: %w", a.field, err)
		}

		text = strings.TrimSpace(string(data))
	}

	parsed, err := url.Parse(text)
	if err != nil || parsed.Host == "" || parsed.Scheme != "amqp" && parsed.Scheme != "amqps" {
		return "", fmt.Errorf("%s: write amqp://HOST:PORT", a.where())
	}

	if err := a.permits(parsed); err != nil {
		return "", fmt.Errorf("%s: %w", a.where(), err)
	}

	return text, nil
}

// permits says whether the URL goes with the other settings.
func (a access) permits(where *url.URL) error {
	_, secret := where.User.Password()

	switch {
	// Others behind the first are its port or its path, which errors name.
	case strings.Contains(where.Host, ","), strings.Contains(where.Path, "://"):
		return errOne
	// The host would be the user then, and errors name it.
	case where.User == nil && strings.Contains(where.String(), "@"):
		return errEscape
	case secret && a.urlFile == "":
		return errPassword
	case a.secured() && where.Scheme == "amqp":
		return fmt.Errorf("%s:// is without TLS, and ca_file or cert_file is given: write %ss://", where.Scheme, where.Scheme)
	default:
		return nil
	}
}

// hosts is where the server is, without user and password.
func (a access) hosts(address string) string {
	parsed, err := url.Parse(address)
	if err != nil {
		return ""
	}

	return parsed.Host
}

// secured says whether the settings ask for TLS, whatever the URL does.
func (a access) secured() bool { return a.caFile != "" || a.certFile != "" }

// tls gives what the settings say of TLS.
func (a access) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}

	if a.caFile != "" {
		var err error
		if config, err = httpbound.Trusting(a.caFile, nil); err != nil {
			return nil, fmt.Errorf("%s.ca_file: %w", a.field, err)
		}
	}

	if a.certFile != "" {
		own, err := tls.LoadX509KeyPair(a.certFile, a.keyFile)
		if err != nil {
			return nil, fmt.Errorf("%s: cert_file %s and key_file %s: %w", a.field, a.certFile, a.keyFile, err)
		}

		config.Certificates = []tls.Certificate{own}
	}

	return config, nil
}
