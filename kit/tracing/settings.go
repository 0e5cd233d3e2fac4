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

// EnvEnabled is the environment variable that enables tracing.
const EnvEnabled = "HYPERFLEET_TRACING_ENABLED"

// prefix is the prefix of the exporters' variables. Each variable has a second name with TRACES_
// after the prefix, which overrides the first.
const prefix = "OTEL_EXPORTER_OTLP_"

const (
	protocolGRPC = "grpc"
	protocolHTTP = "http/protobuf"
	// protocolJSON is used if spans are written to Options.Output.
	protocolJSON = "json"

	// minSecretLength is the minimum length of a text that is treated as a secret. Redacting shorter
	// texts would make errors unreadable.
	minSecretLength = 4
)

// settings are the settings that this package uses itself. The exporters read the variables on
// their own.
type settings struct {
	// endpoint is empty if spans are written to Options.Output.
	endpoint string
	protocol string
	// secrets are texts that must not be logged.
	secrets []string
}

// target returns the destination of the spans for the log. It omits the path, because the path of
// some receivers contains a token.
func (s settings) target() string {
	u, err := url.Parse(s.endpoint)
	if err != nil || s.endpoint == "" {
		return "standard error"
	}

	return u.Scheme + "://" + u.Host
}

func isEnabled(env func(string) string) (bool, error) {
	text := strings.TrimSpace(env(EnvEnabled))
	if text == "" {
		return false, nil
	}

	isOn, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%s: %q: want true or false", EnvEnabled, text)
	}

	return isOn, nil
}

// parseSettings parses and validates the variables. The exporters ignore variables that they cannot
// parse. They would then send spans without a token, or to another receiver.
func parseSettings(env func(string) string) (settings, error) {
	var (
		out  settings
		errs []error
	)

	get := func(name string) string { return strings.TrimSpace(env(name)) }

	for _, name := range variableNames("ENDPOINT") {
		if text := get(name); text != "" {
			out.endpoint = text
			errs = append(errs, validateEndpoint(name, text))
		}
	}

	for _, name := range variableNames("HEADERS") {
		secrets, err := parseHeaders(name, get(name))
		out.secrets = append(out.secrets, secrets...)
		errs = append(errs, err)
	}

	var err error

	out.protocol, err = parseProtocol(get)
	errs = append(errs, err, validateSampler(get))

	for _, variablePrefix := range []string{prefix, prefix + "TRACES_"} {
		errs = append(errs, validateCertificates(variablePrefix, get))
	}

	if out.endpoint == "" {
		out.protocol = protocolJSON
	}

	return out, errors.Join(errs...)
}

// variableNames returns the two names of a variable. The second name overrides the first.
func variableNames(suffix string) []string {
	return []string{prefix + suffix, prefix + "TRACES_" + suffix}
}

// validateEndpoint returns an error if the text is not a URL that spans can be sent to. The error does
// not contain the text, because the text may contain a password.
func validateEndpoint(name, text string) error {
	u, err := url.Parse(text)

	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return fmt.Errorf("%s: want a URL such as http://collector:4317", name)
	case u.User != nil:
		return fmt.Errorf("%s: the URL has a user, which would not be sent: use %sHEADERS", name, prefix)
	case u.RawQuery != "":
		return fmt.Errorf("%s: the URL has a query, which would not be sent: remove it", name)
	default:
		return nil
	}
}

func parseProtocol(get func(string) string) (string, error) {
	protocol := protocolHTTP

	for _, name := range variableNames("PROTOCOL") {
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

// parseHeaders returns the values of the headers as secrets, in every form in which a response of
// the receiver could contain them. Errors name only the position of an invalid entry.
func parseHeaders(name, text string) ([]string, error) {
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
			return nil, fmt.Errorf("%s: entry %d: want NAME=VALUE, with special characters of the value encoded as %%XX", name, i+1)
		}

		secrets = append(secrets, secretForms(raw, value)...)
	}

	return secrets, nil
}

// secretForms returns the forms of a header's value: as it is configured, as it is sent, and the
// part after a scheme such as Bearer.
func secretForms(raw, value string) []string {
	out := []string{strings.TrimSpace(raw), strings.TrimSpace(value)}
	if _, rest, found := strings.Cut(out[1], " "); found {
		out = append(out, strings.TrimSpace(rest))
	}

	return slices.DeleteFunc(out, func(text string) bool { return len(text) < minSecretLength })
}

func validateSampler(get func(string) string) error {
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
		return fmt.Errorf("%s: %q: want always_on, always_off, traceidratio, or one of them with the prefix parentbased_",
			envSampler, name)
	}

	// The negated condition also rejects NaN.
	ratio, err := strconv.ParseFloat(arg, 64)
	if arg != "" && (err != nil || !(ratio >= 0 && ratio <= 1)) {
		return fmt.Errorf("%s: %q: want a number from 0 to 1", envArg, arg)
	}

	return nil
}

// validateCertificates returns an error if the certificate files cannot be loaded. The exporters
// would ignore such files and use the system's CAs and no client certificate.
func validateCertificates(prefix string, get func(string) string) error {
	var errs []error

	if path := get(prefix + "CERTIFICATE"); path != "" {
		switch pem, err := os.ReadFile(path); {
		case err != nil:
			errs = append(errs, fmt.Errorf("%sCERTIFICATE: %w", prefix, err))
		case !x509.NewCertPool().AppendCertsFromPEM(pem):
			errs = append(errs, fmt.Errorf("%sCERTIFICATE: %s: it contains no certificate: use PEM", prefix, path))
		}
	}

	cert, key := get(prefix+"CLIENT_CERTIFICATE"), get(prefix+"CLIENT_KEY")

	switch {
	case cert == "" && key == "":
	case cert == "" || key == "":
		errs = append(errs, fmt.Errorf("%sCLIENT_CERTIFICATE: set it together with %sCLIENT_KEY", prefix, prefix))
	default:
		if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
			errs = append(errs, fmt.Errorf("%sCLIENT_CERTIFICATE: %w", prefix, err))
		}
	}

	return errors.Join(errs...)
}
