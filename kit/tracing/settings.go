// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// EnvEnabled names the variable that turns tracing on.
const EnvEnabled = "HYPERFLEET_TRACING_ENABLED"

// prefix of the variables of exporters. Each of them has a second name, with TRACES_
// behind the prefix, which goes over the first.
const prefix = "OTEL_EXPORTER_OTLP_"

const (
	protocolGRPC = "grpc"
	protocolHTTP = "http/protobuf"
	// protocolNone is that of spans that go to the program's own output.
	protocolNone = "json"

	// shortest is the least length of a text that is taken for a secret: with shorter ones
	// redacted, no error could be read.
	shortest = 4
)

// settings are what has to be known of the variables beside what exporters read.
type settings struct {
	// endpoint is empty where spans go to the program's own output.
	endpoint string
	protocol string
	// secrets are texts that nobody is told.
	secrets []string
}

// to says where spans go, without a path: some receivers have a token in it.
func (s settings) to() string {
	u, err := url.Parse(s.endpoint)
	if err != nil || s.endpoint == "" {
		return "standard error"
	}

	return u.Scheme + "://" + u.Host
}

func enabled(env func(string) string) (bool, error) {
	text := strings.TrimSpace(env(EnvEnabled))
	if text == "" {
		return false, nil
	}

	on, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%s: %q: want true or false", EnvEnabled, text)
	}

	return on, nil
}

// readSettings checks the variables: what an exporter does not understand, it leaves out
// and goes on, so that spans would go without their token, or somewhere else.
func readSettings(env func(string) string) (settings, error) {
	var (
		out  settings
		errs []error
	)

	get := func(name string) string { return strings.TrimSpace(env(name)) }

	for _, name := range names("ENDPOINT") {
		if text := get(name); text != "" {
			out.endpoint = text
			errs = append(errs, checkEndpoint(name, text))
		}
	}

	for _, name := range names("HEADERS") {
		secrets, err := readHeaders(name, get(name))
		out.secrets = append(out.secrets, secrets...)
		errs = append(errs, err)
	}

	var err error

	out.protocol, err = readProtocol(get)
	errs = append(errs, err, checkSampler(get))

	for _, traces := range []string{prefix, prefix + "TRACES_"} {
		errs = append(errs, checkCertificates(traces, get))
	}

	if out.endpoint == "" {
		out.protocol = protocolNone
	}

	return out, errors.Join(errs...)
}

// names are the two of a variable, the stronger last.
func names(what string) []string { return []string{prefix + what, prefix + "TRACES_" + what} }

// checkEndpoint does not tell the text: it may be that there is a password in it.
func checkEndpoint(name, text string) error {
	u, err := url.Parse(text)

	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return fmt.Errorf("%s: want a URL such as http://collector:4317", name)
	case u.User != nil:
		return fmt.Errorf("%s: it has a user in it, which is not sent: write %sHEADERS", name, prefix)
	case u.RawQuery != "":
		return fmt.Errorf("%s: it has a query, which is not sent: leave it out", name)
	default:
		return nil
	}
}

func readProtocol(get func(string) string) (string, error) {
	protocol := protocolHTTP

	for _, name := range names("PROTOCOL") {
		text := get(name)
		if text == "" {
			continue
		}

		if !slices.Contains([]string{protocolGRPC, protocolHTTP}, text) {
			return "", fmt.Errorf("%s: %q: want %s or %s", name, text, protocolGRPC, protocolHTTP)
		}

		protocol = text
	}

	return protocol, nil
}

// readHeaders gives the values of headers, in every form that an answer of the receiver
// could have them in. What is wrong is told by its place alone.
func readHeaders(name, text string) ([]string, error) {
	var secrets []string

	if text == "" {
		return nil, nil
	}

	for i, entry := range strings.Split(text, ",") {
		if strings.TrimSpace(entry) == "" {
			continue
		}

		key, raw, found := strings.Cut(entry, "=")
		value, err := url.PathUnescape(raw)

		if !found || err != nil || !httpguts.ValidHeaderFieldName(strings.TrimSpace(key)) ||
			!httpguts.ValidHeaderFieldValue(strings.TrimSpace(value)) {
			return nil, fmt.Errorf("%s: entry %d: want NAME=VALUE, with the value's special characters as %%XX", name, i+1)
		}

		secrets = append(secrets, forms(raw, value)...)
	}

	return secrets, nil
}

// forms are those of a header's value: as it is written, as it is sent, and what stands
// behind a word such as Bearer.
func forms(raw, value string) []string {
	out := []string{strings.TrimSpace(raw), strings.TrimSpace(value)}
	if _, rest, found := strings.Cut(out[1], " "); found {
		out = append(out, strings.TrimSpace(rest))
	}

	return slices.DeleteFunc(out, func(text string) bool { return len(text) < shortest })
}

func checkSampler(get func(string) string) error {
	const (
		envSampler = "OTEL_TRACES_SAMPLER"
		envArg     = "OTEL_TRACES_SAMPLER_ARG"
	)

	name, arg := strings.ToLower(get(envSampler)), get(envArg)

	switch name {
	case "", "always_on", "always_off", "parentbased_always_on", "parentbased_always_off":
		return nil
	case "traceidratio", "parentbased_traceidratio":
	default:
		return fmt.Errorf("%s: %q: want always_on, always_off, traceidratio, or one of them with parentbased_ before it",
			envSampler, name)
	}

	// NaN is on neither side of a number.
	ratio, err := strconv.ParseFloat(arg, 64)
	if arg != "" && (err != nil || !(ratio >= 0 && ratio <= 1)) {
		return fmt.Errorf("%s: %q: want a number from 0 to 1", envArg, arg)
	}

	return nil
}

// checkCertificates reads the files: without them an exporter would go on with the CAs of
// the system, and without a certificate of its own.
func checkCertificates(prefix string, get func(string) string) error {
	var errs []error

	if path := get(prefix + "CERTIFICATE"); path != "" {
		switch pem, err := os.ReadFile(path); {
		case err != nil:
			errs = append(errs, fmt.Errorf("%sCERTIFICATE: %w", prefix, err))
		case !x509.NewCertPool().AppendCertsFromPEM(pem):
			errs = append(errs, fmt.Errorf("%sCERTIFICATE: %s: no certificate in it: write PEM", prefix, path))
		}
	}

	cert, key := get(prefix+"CLIENT_CERTIFICATE"), get(prefix+"CLIENT_KEY")

	switch {
	case cert == "" && key == "":
	case cert == "" || key == "":
		errs = append(errs, fmt.Errorf("%sCLIENT_CERTIFICATE: it goes together with %sCLIENT_KEY", prefix, prefix))
	default:
		if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
			errs = append(errs, fmt.Errorf("%sCLIENT_CERTIFICATE: %w", prefix, err))
		}
	}

	return errors.Join(errs...)
}
