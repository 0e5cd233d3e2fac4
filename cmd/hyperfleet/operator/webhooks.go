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
	"github.com/hyperfleet/hyperfleet/kit/inputbound"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// servesWebhooks says whether CI platforms and machines call this process.
func servesWebhooks(cfg config.OperatorConfig) bool {
	return slices.Contains(cfg.Controllers, config.AreaRunners) && cfg.Webhooks.BindAddress != "0"
}

// byOwnAuthority says whether they are shown a certificate that the operator makes itself.
func byOwnAuthority(cfg config.OperatorConfig) bool {
	return servesWebhooks(cfg) && cfg.Webhooks.CertFile == "" && !cfg.Webhooks.PlainHTTP && cfg.Webhooks.OwnAuthority
}

// webhookSettings sees that nobody serves in the clear who has not said so: machines send
// tokens here, and get credentials.
func webhookSettings(cfg config.OperatorConfig) error {
	var errs []error

	wrong := func(bad bool, key, format string, args ...any) {
		if bad {
			errs = append(errs, strictyaml.ErrorAt(key, format, args...))
		}
	}
	web := cfg.Webhooks

	wrong((web.CertFile == "") != (web.KeyFile == ""), "webhooks.certFile",
		"it belongs together with webhooks.keyFile: set both or neither")
	wrong(web.PlainHTTP && web.CertFile != "", "webhooks.plainHTTP", "webhooks.certFile serves TLS: leave one of them out")
	wrong(servesWebhooks(cfg) && web.CertFile == "" && !web.OwnAuthority && !web.PlainHTTP && !onLoopback(web.BindAddress),
		"webhooks.bindAddress", "%q is beyond loopback, where tokens of machines are not taken in the clear: set webhooks.certFile "+
			"and webhooks.keyFile, or webhooks.ownAuthority, or webhooks.plainHTTP where an ingress ends TLS", web.BindAddress)

	if err := webhookURL(web.URL); err != nil {
		errs = append(errs, strictyaml.ErrorAt("webhooks.url", "%w", err))
	}

	return errors.Join(errs...)
}

// onLoopback says whether only this machine reaches an address that is listened on.
func onLoopback(bind string) bool {
	host, _, _ := net.SplitHostPort(bind)
	addr, _ := netip.ParseAddr(host)

	return host == "localhost" || addr.Unmap().IsLoopback()
}

var errWebhookURL = errors.New("it must be a URL such as https://hyperfleet.example.com, without a path")

func webhookURL(text string) error {
	if text == "" {
		return nil
	}

	u, err := url.Parse(text)
	web := err == nil && (u.Scheme == "https" || u.Scheme == "http")
	if !web || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return errWebhookURL
	}

	return nil
}

// guestCAs are what machines verify the operator by. A file is read each time, since whoever
// renews the certificate may renew its authority too; while it can't be read the last one counts.
func guestCAs(file string) (func() string, error) {
	last, err := readCAs(file)
	if err != nil {
		return nil, err
	}

	var mu sync.Mutex

	return func() string {
		mu.Lock()
		defer mu.Unlock()

		if now, err := readCAs(file); err == nil {
			last = now
		}

		return last
	}, nil
}

func readCAs(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read guest.caFile: %w", err)
	}

	if _, err := inputbound.Authorities(raw, nil); err != nil {
		return "", fmt.Errorf("read guest.caFile %s: %w", file, err)
	}

	return string(raw), nil
}
