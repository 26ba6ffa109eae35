package browser_test

import (
	"bytes"
	"encoding/base64"
	"image"
	"image/png"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/makiuchi-d/gozxing"
	"github.com/makiuchi-d/gozxing/qrcode"

	"github.com/kith/kith/internal/assert"
)

// readQR returns what the QR code on the page says. The picture is the code and its border
// alone: to find a code in the photo of a phone is a search that this reader loses for some
// good codes, whichever encoder made them.
func (b *tab) readQR() string {
	b.t.Helper()
	source := run(b, chromedp.Evaluate[string](`document.querySelector("img.qr")?.src ?? ""`))
	data := assert.Value(base64.StdEncoding.DecodeString(strings.TrimPrefix(source, "data:image/png;base64,")))(b.t)
	img := assert.Value(png.Decode(bytes.NewReader(data)))(b.t)
	return decodeQR(b.t, img)
}

func decodeQR(t *testing.T, img image.Image) string {
	t.Helper()
	all := img.Bounds()
	for x := range all.Dx() {
		for y := range all.Dy() {
			const border = 4 * 8 // modules of 8 pixels
			inside := image.Pt(x, y).In(all.Inset(border))
			if black, _, _, _ := img.At(x, y).RGBA(); black == 0 && !inside {
				t.Fatalf("the pixel at %d, %d is in the white border", x, y)
			}
		}
	}
	bitmap := assert.Value(gozxing.NewBinaryBitmapFromImage(img))(t)
	read, err := qrcode.NewQRCodeReader().Decode(bitmap, map[gozxing.DecodeHintType]any{gozxing.DecodeHintType_PURE_BARCODE: true})
	assert.OK(t, err)
	return read.GetText()
}
