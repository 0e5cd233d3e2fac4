// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package setup

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// question is one thing to ask, and the flag that answers it.
type question struct {
	text, flag string
	into       *string
	secret     bool
}

// hypervisorQuestions are those without an answer.
func (o *options) hypervisorQuestions() []question {
	return unanswered([]question{
		{text: "Proxmox VE (host, or URL)", flag: "endpoint", into: &o.Endpoint},
		{text: "API token, such as hyperfleet@pve!operator", flag: "token-id", into: &o.TokenID},
		{text: "secret of that token", flag: "token-secret-file", into: &o.TokenSecret, secret: true},
		{text: "name of the template for machines", flag: "template", into: &o.Template},
	})
}

// platformQuestions are those without an answer.
func (o *options) platformQuestions() []question {
	var all []question
	if o.Organization == "" && o.Repository == "" {
		all = append(all, question{text: "organisation on GitHub", flag: "organization", into: &o.Organization})
	}

	if o.AppID == "" {
		all = append(all, question{text: "token of GitHub", flag: "github-token-file", into: &o.GitHubToken, secret: true})
	}

	return unanswered(all)
}

func unanswered(all []question) []question {
	var out []question

	for _, one := range all {
		if *one.into == "" {
			out = append(out, one)
		}
	}

	return out
}

// unknownCertificateError is a server whose certificate nobody here vouches for.
type unknownCertificateError struct{ endpoint, fingerprint string }

// Error names the fingerprint and the flag.
func (e *unknownCertificateError) Error() string {
	return fmt.Sprintf("the certificate of %s is signed by nobody whom this machine trusts: compare its fingerprint with "+
		"NODE > System > Certificates in the web interface, and give it: --fingerprint %s", e.endpoint, e.fingerprint)
}

func (e *unknownCertificateError) question() string {
	return fmt.Sprintf("%s shows a certificate that is signed by nobody whom this machine trusts. Its fingerprint is\n\n    %s\n\n"+
		"NODE > System > Certificates in the web interface has to show the same. Does it?", e.endpoint, e.fingerprint)
}

// tryHypervisor checks the answers about the hypervisor.
func (o *options) tryHypervisor(ctx context.Context) (string, error) {
	endpoint, err := apiURL(o.Endpoint)
	if err != nil {
		return "", err
	}

	o.Endpoint = endpoint

	if o.Fingerprint == "" && len(o.CABundle) == 0 {
		fingerprint, trusted, err := certificate(ctx, endpoint)
		if err != nil {
			return "", err
		}

		if !trusted {
			return "", &unknownCertificateError{endpoint: endpoint, fingerprint: fingerprint}
		}
	}

	said, err := o.checkHypervisor(ctx)

	return said, o.inFlags(err)
}

// inFlags names the flags where the operator would name fields of a HypervisorCluster.
func (o *options) inFlags(err error) error {
	const compare = "compare the fingerprint with NODE > System > Certificates in the web interface, and give it: --fingerprint "

	if pinned, ok := errors.AsType[*hypervisor.FingerprintError](err); ok {
		return errors.New(o.Endpoint + " shows another certificate than that of --fingerprint: " + compare + pinned.Got)
	}

	if refused, ok := errors.AsType[*tls.CertificateVerificationError](err); ok && len(refused.UnverifiedCertificates) > 0 {
		return fmt.Errorf("the authority in --ca-file does not vouch for the certificate of %s: %w: give the one that does, or %s%s",
			o.Endpoint, refused.Err, compare, hypervisor.Fingerprint(sha256.Sum256(refused.UnverifiedCertificates[0].Raw)))
	}

	return err
}

// tryPlatform checks the answers about the CI platform.
func (o *options) tryPlatform(ctx context.Context) (string, error) {
	if err := o.checkPlatform(ctx); err != nil {
		return "", err
	}

	return "the credentials suffice for " + o.Organization + o.Repository, nil
}

// asker asks people.
type asker struct {
	in       io.Reader
	out      io.Writer
	terminal bool
	lines    *bufio.Reader
}

// all asks the questions. Where nobody is there, it names all the flags.
func (a *asker) all(questions []question) error {
	if len(questions) > 0 && !a.terminal {
		flags := make([]string, 0, len(questions))
		for _, one := range questions {
			flags = append(flags, "--"+one.flag)
		}

		return cli.Usagef("there is no terminal to ask at: give %s", strings.Join(flags, ", "))
	}

	for _, one := range questions {
		for *one.into == "" {
			fmt.Fprintf(a.out, "%s: ", one.text)

			answer, err := a.answer(one.secret)
			if err != nil {
				return err
			}

			*one.into = strings.TrimSpace(answer)
		}
	}

	return nil
}

// confirm goes on after a yes alone.
func (a *asker) confirm(text string) error {
	fmt.Fprintf(a.out, "%s [y/N] ", text)

	answer, err := a.answer(false)
	if err != nil {
		return err
	}

	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return errors.New("the certificate is not known: nothing was sent")
	}

	return nil
}

func (a *asker) answer(secret bool) (string, error) {
	if file, ok := a.in.(*os.File); ok && secret {
		text, err := term.ReadPassword(int(file.Fd()))
		fmt.Fprintln(a.out)

		if err != nil {
			return "", fmt.Errorf("read answer: %w", err)
		}

		return string(text), nil
	}

	if a.lines == nil {
		a.lines = bufio.NewReader(a.in)
	}

	text, err := a.lines.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("read answer: %w", err)
	}

	return text, nil
}
