// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// servesWebhooks reports whether this process serves webhooks and machine reports.
func servesWebhooks(cfg config.OperatorConfig) bool {
	return slices.Contains(cfg.Controllers, config.AreaRunners) && cfg.Webhooks.BindAddress != "0"
}

// usesOwnAuthority reports whether the webhook server uses a certificate of the operator's own CA.
func usesOwnAuthority(cfg config.OperatorConfig) bool {
	return servesWebhooks(cfg) && cfg.Webhooks.CertFile == "" && !cfg.Webhooks.PlainHTTP && cfg.Webhooks.OwnAuthority
}

// validateWebhooks checks the settings of the webhook server. It rejects plain HTTP beyond loopback unless
// the configuration asks for it explicitly, because machines send tokens to the server and receive
// credentials.
func validateWebhooks(cfg config.OperatorConfig) error {
	var errs []error

	rejectIf := func(isInvalid bool, key, format string, args ...any) {
		if isInvalid {
			errs = append(errs, strictyaml.ErrorAt(key, format, args...))
		}
	}
	web := cfg.Webhooks

	rejectIf((web.CertFile == "") != (web.KeyFile == ""), "webhooks.certFile",
		"it is required together with webhooks.keyFile: set both or neither")
	rejectIf(web.PlainHTTP && web.CertFile != "", "webhooks.plainHTTP",
		"it conflicts with webhooks.certFile, which serves TLS: remove one of them")
	rejectIf(servesWebhooks(cfg) && web.CertFile == "" && !web.OwnAuthority && !web.PlainHTTP && !isLoopback(web.BindAddress),
		"webhooks.bindAddress", "%q is not a loopback address, so tokens of machines need TLS: set webhooks.certFile "+
			"and webhooks.keyFile, or webhooks.ownAuthority, or webhooks.plainHTTP if an ingress terminates TLS", web.BindAddress)

	if err := validateWebhookURL(web.URL); err != nil {
		errs = append(errs, strictyaml.ErrorAt("webhooks.url", "%w", err))
	}

	return errors.Join(errs...)
}

// isLoopback reports whether a bind address is reachable only from this machine.
func isLoopback(bind string) bool {
	host, _, _ := net.SplitHostPort(bind)
	addr, _ := netip.ParseAddr(host)

	return host == "localhost" || addr.Unmap().IsLoopback()
}

var errWebhookURL = errors.New("it must be a URL such as https://hyperfleet.example.com, without a path")

func validateWebhookURL(text string) error {
	if text == "" {
		return nil
	}

	u, err := url.Parse(text)
	isHTTP := err == nil && (u.Scheme == "https" || u.Scheme == "http")
	if !isHTTP || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return errWebhookURL
	}

	return nil
}

// newGuestCABundle returns a function that returns the CA bundle with which machines verify the operator. The
// function reads the file at each call, because the CA may be renewed together with the certificate. If the
// file cannot be read or is invalid, the function returns the last valid bundle.
func newGuestCABundle(file string) (func() string, error) {
	last, err := readCABundle(file)
	if err != nil {
		return nil, err
	}

	var mu sync.Mutex

	return func() string {
		mu.Lock()
		defer mu.Unlock()

		if current, err := readCABundle(file); err == nil {
			last = current
		}

		return last
	}, nil
}

func readCABundle(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read guest.caFile: %w", err)
	}

	if _, err := bounds.ParseCABundle(raw, nil); err != nil {
		return "", fmt.Errorf("parse guest.caFile %s: %w", file, err)
	}

	return string(raw), nil
}
